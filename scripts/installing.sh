# Sourced by the set-up scripts: how they speak, and how they install what Debian has.
log=$(mktemp)
trap 'rm -f "$log"' EXIT

say() { printf 'penstock: %s\n' "$*"; }

fail() {
    printf 'penstock: %s\n' "$@" >&2
    exit 1
}

# Runs a command silently; when it fails, shows what it said.
quietly() {
    "$@" >"$log" 2>&1 || {
        cat "$log" >&2
        return 1
    }
}

# Whether packages can be installed here without asking anybody.
may_install() { command -v apt-get >/dev/null && [ "$(id -u)" -eq 0 ]; }

# Installs Debian's packages of these names.
install_debian() {
    say "installing Debian's $*"
    quietly apt-get update -qq || fail "apt-get update failed"
    quietly env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" ||
        fail "apt-get could not install $*"
}
