"""Which addresses the router may connect to."""

from typing import Any

import pytest

from penstock.errors import InvalidArgument
from penstock.http.client.allowed_addresses import AllowedAddresses

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "93.184.216.34",
    "100.63.255.255",
    "100.128.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "223.255.255.255",
    "2606:2800:220:1::1",
    "2a00:1450:4001:82a::200e",
    "::ffff:8.8.8.8",  # the same as 8.8.8.8
    "::ffff:808:808",
    "64:ff9b::8.8.8.8",  # the way to 8.8.8.8 in a network that has no IPv4
]

INSIDE = {
    "this machine": ["127.0.0.1", "127.0.0.2", "127.255.255.254", "::1", "0:0:0:0:0:0:0:1"],
    "any of this machine": ["0.0.0.0", "0.1.2.3", "::"],
    "private": [
        "10.0.0.1",
        "10.255.255.255",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.0.1",
        "192.168.255.255",
        "fc00::1",
        "fdff::1",
    ],
    "link-local": ["169.254.0.1", "169.254.255.255", "fe80::1", "febf::1", "fe80::1%eth0", "fe80::1%25eth0", "fec0::1"],
    "of a carrier": ["100.64.0.1", "100.127.255.255"],
    "metadata": [
        "169.254.169.254",
        "169.254.170.2",
        "168.63.129.16",
        "100.100.100.200",
        "192.0.0.192",
        "fd00:ec2::254",
        "fd20:ce::254",
        "fd00:c1::a9fe:a9fe",
    ],
    "of protocols": ["192.0.0.1", "192.0.0.9", "192.0.0.170", "192.88.99.1", "2001:1::1", "2001:20::1", "100::1", "5f00::1"],
    "for documents and measurements": [
        "192.0.2.1",
        "198.51.100.1",
        "203.0.113.1",
        "198.18.0.1",
        "2001:db8::1",
        "3fff::1",
        "2001:2::1",
    ],
    "to many": ["224.0.0.1", "239.255.255.250", "255.255.255.255", "ff02::1", "ff0e::1"],
    "reserved": ["240.0.0.1", "254.255.255.255", "4000::1", "e000::1"],
    "mapped": [
        "::ffff:127.0.0.1",
        "::ffff:7f00:1",
        "::FFFF:10.0.0.1",
        "0:0:0:0:0:ffff:a9fe:a9fe",
        "::ffff:169.254.169.254",
        "::ffff:0.0.0.0",
        "::ffff:224.0.0.1",
        "::ffff:168.63.129.16",
    ],
    "translated": ["::ffff:0:127.0.0.1", "::ffff:0:8.8.8.8"],
    "IPv4-compatible": ["::127.0.0.1", "::7f00:1", "::10.0.0.1", "::8.8.8.8"],
    "6to4": ["2002:7f00:1::", "2002:a9fe:a9fe::1", "2002:a00:1::1", "2002:808:808::1"],
    "Teredo": ["2001::1", "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:0:7f00:1::"],
    "NAT64": [
        "64:ff9b::7f00:1",
        "64:ff9b::127.0.0.1",
        "64:ff9b::169.254.169.254",
        "64:ff9b::10.0.0.1",
        "64:ff9b:1::1",
        "64:ff9b:1::808:808",
    ],
    "ISATAP": [
        "fe80::5efe:127.0.0.1",
        "2606:2800:220:1:0:5efe:7f00:1",
        "2606:2800:220:1:200:5efe:10.0.0.1",
        "2606:2800::5efe:808:808",
    ],
    "of one interface": ["2606:2800:220:1::1%eth0", "::1%lo", "::ffff:8.8.8.8%1"],
}

NO_ADDRESSES = [
    "",
    " ",
    "127.1",
    "127.0.1",
    "0x7f.1",
    "0x7f000001",
    "0X7F.0.0.1",
    "2130706433",
    "134744072",
    "0177.0.0.1",
    "017700000001",
    "127.0.0.01",
    "08.8.8.8",
    "8.8.8.8.",
    "8.8.8.8 ",
    " 8.8.8.8",
    "8.8.8.8\n",
    "8.8.8.8\x00",
    "8.8.8.8%eth0",
    "8.8.8.8:80",
    "8.8.8.8/32",
    "8.8.8",
    "8.8.8.256",
    "\uff18.8.8.8",
    "[8.8.8.8]",
    "1::2::3",
    "2606:2800:220:1::1:",
    "[2606:2800:220:1::1",
    "2606:2800:220:1::1%",
    "2606:2800:220:1::1%a%b",
    "localhost",
    "dns.example",
    "*",
]

ADDRESSES_INSIDE = [address for addresses in INSIDE.values() for address in addresses]


def test_the_table_is_long_enough() -> None:
    assert len(set(ADDRESSES_INSIDE)) >= 60


def test_a_public_address_may_be_called(subtests: pytest.Subtests) -> None:
    for address in PUBLIC:
        with subtests.test(address=address):
            assert AllowedAddresses().may_connect("hooks.example", address, 443)


def test_any_other_address_may_be_called_only_if_the_operator_says_so(subtests: pytest.Subtests) -> None:
    for address in ADDRESSES_INSIDE:
        with subtests.test(address=address):
            for allow in ((), ("other.example", "*.example.com", "198.51.100.77", "fd77::/16", "hooks.example:444")):
                assert not AllowedAddresses(allow).may_connect("hooks.example", address, 443)
                assert not AllowedAddresses(allow).may_connect(address, address, 443)
            for name in ("hooks.example", "*.example", "h*.example", "hooks.example:443", "HOOKS.example"):
                assert AllowedAddresses([name]).may_connect("hooks.example", address, 443)
            assert AllowedAddresses(["0.0.0.0/0", "::/0"]).may_connect("hooks.example", address, 443)
            assert not AllowedAddresses(["0.0.0.0/0:80", "[::/0]:80"]).may_connect("hooks.example", address, 443)


def test_what_is_no_address_is_never_connected_to(subtests: pytest.Subtests) -> None:
    for text in NO_ADDRESSES:
        with subtests.test(ascii(text)[:50]):
            assert not AllowedAddresses().may_connect("hooks.example", text, 443)
            assert not AllowedAddresses(["0.0.0.0/0", "::/0", "*.example", "localhost"]).may_connect("hooks.example", text, 443)


NETWORKS = [
    ("10.1.2.3", "10.1.2.3", 443, True),
    ("10.1.2.3", "10.1.2.4", 443, False),
    ("10.1.2.3:443", "10.1.2.3", 443, True),
    ("10.1.2.3:443", "10.1.2.3", 80, False),
    ("10.0.0.0/8", "10.255.255.255", 443, True),
    ("10.0.0.0/8", "11.0.0.0", 443, True),  # public
    ("10.0.0.0/9", "10.128.0.0", 443, False),
    ("10.0.0.0/255.0.0.0", "10.1.2.3", 443, True),
    ("10.0.0.0/8:443", "10.1.2.3", 443, True),
    ("10.0.0.0/8:443", "10.1.2.3", 80, False),
    ("169.254.169.254/32", "169.254.169.254", 80, True),
    # An IPv4 address in IPv6 is the same for the system that connects to it.
    ("10.0.0.0/8", "::ffff:10.1.2.3", 443, True),
    ("10.0.0.0/8", "::ffff:a01:203", 443, True),
    ("10.0.0.0/8", "::ffff:127.0.0.1", 443, False),
    ("10.0.0.0/8:443", "::ffff:10.1.2.3", 80, False),
    ("::ffff:10.0.0.0/104", "10.1.2.3", 443, True),
    ("::ffff:10.0.0.0/104", "::ffff:10.1.2.3", 443, True),
    ("::ffff:10.1.2.3", "10.1.2.3", 443, True),
    ("::ffff:10.1.2.3", "10.1.2.4", 443, False),
    # Behind a gateway or a tunnel the same number is somebody else's machine.
    ("10.0.0.0/8", "64:ff9b::10.1.2.3", 443, False),
    ("10.0.0.0/8", "64:ff9b:1::10.1.2.3", 443, False),
    ("10.0.0.0/8", "2002:a01:203::1", 443, False),
    ("10.0.0.0/8", "::10.1.2.3", 443, False),
    ("64:ff9b::/96", "64:ff9b::10.1.2.3", 443, True),
    ("64:ff9b:1::/48", "64:ff9b:1::10.1.2.3", 443, True),
    # One family does not open the other.
    ("0.0.0.0/0", "::1", 443, False),
    ("::/0", "127.0.0.1", 443, False),
    ("::/0", "::ffff:127.0.0.1", 443, False),
    ("fd00::1", "fd00::1", 443, True),
    ("FD00::1", "fd00:0::1", 443, True),
    ("[fd00::1]", "fd00::1", 443, True),
    ("[fd00::1]:443", "fd00::1", 443, True),
    ("[fd00::1]:443", "fd00::1", 80, False),
    ("fd00::/8", "fdff::1", 443, True),
    ("fd00::/8", "fc00::1", 443, False),
    ("[fd00::/8]", "fd00::1", 443, True),
    ("[fd00::/8]:443", "fd00::1", 443, True),
    ("[fd00::/8]:443", "fd00::1", 80, False),
    ("fd00::1:443", "fd00::1:443", 80, True),  # without brackets there is no port
    ("fd00::1:443", "fd00::1", 443, False),
    ("fe80::/10", "fe80::1%eth0", 443, True),
    ("fe80::1", "fe80::1%eth0", 443, True),
]


def test_a_network_is_open_whatever_name_leads_there(subtests: pytest.Subtests) -> None:
    for pattern, address, port, is_open in NETWORKS:
        with subtests.test(pattern=pattern, address=address):
            for host in ("hooks.example", address, "", "\\"):
                assert AllowedAddresses(["other.example", pattern]).may_connect(host, address, port) is is_open


NAMES = [
    ("hooks.internal", "hooks.internal", 443, True),
    ("hooks.internal", "HOOKS.Internal", 443, True),
    ("hooks.internal", "hooks.internal.", 443, True),
    ("hooks.internal.", "hooks.internal", 443, True),
    ("hooks.internal:443", "hooks.internal", 443, True),
    ("hooks.internal:443", "hooks.internal", 80, False),
    ("*.internal", "a.b.internal", 443, True),
    ("*.internal", "internal", 443, False),
    ("*.internal", ".internal", 443, True),
    ("a*b*.internal", "axxbxx.internal", 443, True),
    ("a*b*.internal", "bxxaxx.internal", 443, False),
    ("localhost", "localhost", 443, True),
    ("my_host", "my_host", 443, True),
    ("hooks.internal", "evil-hooks.internal", 443, False),
    ("hooks.internal", "hooks.internal.evil.example", 443, False),
    ("hooks.internal", "hooksxinternal", 443, False),
    ("*.internal", "evil.example\\.internal", 443, False),
    ("*.internal", "evil.example#.internal", 443, False),
    ("*.internal", "evil.example%2f.internal", 443, False),
    ("*.internal", "evil.example\n.internal", 443, False),
    ("*.internal", "evil.example\x00.internal", 443, False),
    ("*.internal", "user@evil.internal", 443, False),
    ("*.internal", "a.internal..", 443, False),
    ("kelvin.internal", "\u212aelvin.internal", 443, False),
    ("hooks.internal", "", 443, False),
    ("hooks.internal", "127.0.0.1", 443, False),
]


def test_a_name_that_was_allowed_may_lead_anywhere(subtests: pytest.Subtests) -> None:
    for pattern, host, port, is_open in NAMES:
        with subtests.test(pattern=pattern, host=host):
            for address in ("127.0.0.1", "169.254.169.254", "fd00::1"):
                assert AllowedAddresses(["other.example", pattern]).may_connect(host, address, port) is is_open


BAD: list[tuple[Any, str]] = [
    ("", "a host name"),
    (" ", "a host name"),
    ("hooks.internal ", "a host name"),
    ("bücher.example", "a host name"),
    ("\u212aelvin.example", "a host name"),
    ("http://hooks.internal", "a port from 1 to 65535"),
    ("hooks.internal/path", "a network"),
    ("hooks.internal:", "a port from 1 to 65535"),
    ("hooks.internal:0", "a port from 1 to 65535"),
    ("hooks.internal:65536", "a port from 1 to 65535"),
    ("hooks.internal:http", "a port from 1 to 65535"),
    ("hooks.internal:\uff1443", "a host name"),
    ("hooks.internal:*", "a port from 1 to 65535"),
    (":443", "a host name"),
    ("user@hooks.internal", "a host name"),
    (".", "a name whose last part"),
    ("*", "a name whose last part"),
    ("*:443", "a name whose last part"),
    ("*.*", "a name whose last part"),
    ("10.*", "a name whose last part"),
    ("hooks.*", "a name whose last part"),
    ("hooks*", "a name whose last part"),
    ("127.1", "an address in full"),
    ("2130706433", "an address in full"),
    ("0x7f.1", "an address in full"),
    ("0177.0.0.1", "an address in full"),
    ("*.1", "an address in full"),
    ("10.0.0.1/8", "10.0.0.0/8"),
    ("fd00::1/8", "fd00::/8"),
    ("10.0.0.0/33", "a network"),
    ("10.0.0.0/", "a network"),
    ("10.0.0.0/-1", "a network"),
    ("10.0/8", "a network"),
    ("fd00::/129", "a network"),
    ("fe80::1%eth0", "an address without the name of an interface"),
    ("fe80::%eth0/10", "an address without the name of an interface"),
    ("[10.1.2.3]", "brackets around IPv6 alone"),
    ("[hooks.internal]:443", "brackets around IPv6 alone"),
    ("[]:443", "brackets around IPv6 alone"),
    ("[fd00::]/8", "a host name"),
    ("[fd00::1", "a host name"),
    ("[fd00::1]443", "a host name"),
    ("[[fd00::1]]", "a host name"),
    ("fd00:::1", "a host name"),
    ("\n", "a host name"),
    (None, "a host name"),
    (b"hooks.internal", "a host name"),
    (10, "a host name"),
]


def test_a_pattern_that_cannot_be_meant_is_refused_with_what_was_wanted(subtests: pytest.Subtests) -> None:
    for pattern, wanted in BAD:
        with subtests.test(ascii(pattern)[:50]):
            with pytest.raises(InvalidArgument, match="allow_targets is ") as refused:
                AllowedAddresses(["fine.example", pattern])

            assert f"expected {wanted}" in str(refused.value).replace("the first address of the network: ", "")
            assert refused.value.hint


def test_a_pattern_full_of_stars_takes_no_time() -> None:
    assert not AllowedAddresses(["*a" * 100 + ".internal"]).may_connect("a" * 5000, "127.0.0.1", 80)
