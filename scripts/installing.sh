# Sourced by the set-up scripts: how they report, and how they install packages of Debian.
log=$(mktemp)
trap 'rm -f "$log"' EXIT

say() { printf 'penstock: %s\n' "$*"; }

fail() {
    printf 'penstock: %s\n' "$@" >&2
    exit 1
}

# Runs a command silently, with a line every 15 seconds as a sign of life; shows its output if it fails.
quietly() {
    "$@" >"$log" 2>&1 &
    command=$!
    ticks=0
    while kill -0 "$command" 2>/dev/null; do
        sleep 0.2
        ticks=$((ticks + 1))
        [ $((ticks % 75)) -ne 0 ] || say "  … $((ticks / 5)) s: $(tail -n 1 "$log" | cut -c 1-90)"
    done
    wait "$command" || {
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
    quietly env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$@" ||
        fail "apt-get could not install $*"
}
