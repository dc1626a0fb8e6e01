"""Several machines that share a run: which they are, which of them this is, and what to say when one is gone.

    EDP_LAB_MACHINES=one,two edp-lab train --processes 8 ...     # on each of them

The first one's first rank is where they meet, and its folder is the run's; each starts its part of the ranks.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from typing import NamedTuple

import psutil

from edp_lab.errors import UsageError

MACHINES = "EDP_LAB_MACHINES"  # environment variable: names or addresses, the same on each machine
TIMEOUT = "EDP_LAB_TIMEOUT"  # environment variable: seconds that ranks wait for one another (600)
CUT_OFF = re.compile(r"connection .*(closed|reset)|(closed|reset) by peer|remote process exited", re.IGNORECASE)
IN_VAIN = re.compile(r"timed ?out", re.IGNORECASE)


class Machines(NamedTuple):
    """By default this one alone."""

    names: tuple[str, ...] = ("localhost",)
    addresses: tuple[str, ...] = ("127.0.0.1",)
    own: int = 0  # which of them this is

    @classmethod
    def given(cls) -> Machines:
        """Those that EDP_LAB_MACHINES names; UsageError unless just one of them is this machine."""
        given = os.environ.get(MACHINES, "")
        names = tuple(filter(None, map(str.strip, given.split(","))))
        if not names:
            return cls()
        addresses = tuple(map(_address, names))
        reached = {address for address in _interfaces() if not address.startswith("127.")}
        own = [number for number, address in enumerate(addresses) if address in reached]
        if len(own) != 1:
            raise UsageError(
                f"{MACHINES} is {given!r}, here {', '.join(addresses)}: just one of them must be an address by which "
                "the others reach this machine"
            )
        return cls(names, addresses, own[0])

    def ranks(self, processes: int) -> range:
        """Those that this machine starts of so many; UsageError where there are not enough for all machines."""
        many = len(self.names)
        if processes < many:
            on = f" on {many} machines" if many > 1 else ""
            raise UsageError(f"a run{on} cannot have {processes} processes: give {many} or more")
        return range(processes * self.own // many, processes * (self.own + 1) // many)

    def environment(self) -> dict[str, str]:
        """Where the ranks meet, and through which network; UsageError where another run meets there."""
        port = os.environ.get("MASTER_PORT", "29500") if len(self.names) > 1 else "0"
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier run may just have ended
            try:
                if self.own == 0:
                    probe.bind((self.addresses[0], int(port)))
                    port = str(probe.getsockname()[1])  # 0 is any that is free
            except (OSError, ValueError, OverflowError):
                raise UsageError(f"port {port} is not free: give every machine another MASTER_PORT") from None
        interface = _interfaces()[self.addresses[self.own]]
        return {"MASTER_ADDR": self.addresses[0], "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": interface}

    @property
    def others(self) -> list[str]:
        pairs = zip(self.names, self.addresses, strict=True)
        told = [f"machine {name}" + (f" ({address})" if name != address else "") for name, address in pairs]
        return [one for number, one in enumerate(told) if number != self.own]


def _address(name: str) -> str:
    try:
        return socket.gethostbyname(name)
    except (OSError, UnicodeError):
        raise UsageError(f"{MACHINES} names {name!r}, which has no IPv4 address here: give the address") from None


def _interfaces() -> dict[str, str]:
    """This machine's network interfaces by their addresses."""
    return {one.address: name for name, own in psutil.net_if_addrs().items() for one in own}


def lost(line: str, others: Sequence[str]) -> str | None:
    """What became of the others, if there are any and the error with this last line means that they do not answer."""
    address = re.search(r"\[(\d+\.\d+\.\d+\.\d+)\]", line)
    who = " or ".join([one for one in others if address and address[1] in re.split("[ ()]", one)] or others)
    if who and CUT_OFF.search(line):
        return f"{who} is gone"
    if who and IN_VAIN.search(line):
        return f"no word from {who} for {os.environ.get(TIMEOUT, '600')} seconds ({TIMEOUT})"
    return None
