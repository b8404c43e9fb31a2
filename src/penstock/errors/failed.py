"""Something outside the call has failed."""

from __future__ import annotations

from penstock.errors.root import PenstockError


class Unavailable(PenstockError):
    """Not now; the same call may succeed later."""

    code = 14
    reason = "unavailable"
    transient = True


class JournalUnavailable(Unavailable):
    """The journal cannot write. Nothing of this call was stored; consuming goes on, and publishing will when writing does."""

    reason = "journal_unavailable"
    hint = "free disk space or repair the device; the broker tries again by itself"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"cannot write to the journal {self.path!r}: {self.problem}; nothing was stored"


class ServerUnreachable(Unavailable):
    """There is no connection to the server, for longer than the client was told to try."""

    reason = "server_unreachable"
    hint = "start it with `penstock serve`, or look for a typing error in the address"

    def __init__(self, address: str, problem: str) -> None:
        super().__init__(address, problem)
        self.address = address
        self.problem = problem

    def __str__(self) -> str:
        return f"no connection to the server at {self.address}: {self.problem}"


class DataLoss(PenstockError):
    """Stored data cannot be trusted."""

    code = 15
    reason = "data_loss"


class CorruptLog(DataLoss):
    """The stored bytes are not what was written. Nothing was changed or repaired."""

    reason = "corrupt_log"
    hint = (
        "restore the data directory from a backup, or move it away to start empty; Penstock never repairs or deletes it by itself"
    )

    def __init__(self, path: str, where: str, problem: str) -> None:
        super().__init__(path, where, problem)
        self.path = path
        self.where = where
        self.problem = problem

    def __str__(self) -> str:
        return f"corrupt log {self.path!r}: {self.where}: {self.problem}"
