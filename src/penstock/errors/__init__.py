"""Every error Penstock raises, as one tree.

    PenstockError
    ├── InvalidArgument (3)        the call itself is wrong; the same call never succeeds
    │   ├── InvalidAckId           the delivery is settled, expired, replaced or was never made
    │   ├── InvalidFilter          a subscription filter that does not parse, with its position
    │   ├── InvalidPriority
    │   └── TransformFailed        a JavaScript transform threw, or made something that is no message
    ├── NotFound (5)
    │   ├── TopicNotFound · SubscriptionNotFound · SnapshotNotFound
    │   ├── QueueNotFound · MessageNotFound · ConsumerNotFound
    │   └── SchemaNotFound · TokenNotFound · CursorNotFound · PartNotFound · ActorNotFound
    ├── AlreadyExists (6)
    ├── PermissionDenied (7)       the token does not allow this
    ├── ResourceExhausted (8)      transient: room may come back
    │   ├── SubscriptionFull
    │   ├── QueueFull
    │   └── RateLimited            too many calls of one client; `retry_after` says when to come back
    ├── FailedPrecondition (9)
    │   ├── AckDeadlineExceeded    the lease ran out before the call arrived
    │   ├── AckIdsRefused          of an exactly-once subscription, some deliveries are over
    │   ├── BrokerClosed
    │   ├── DataDirectoryInUse
    │   ├── StreamReplaced         the stream was deleted and made again since it was read
    │   ├── OpenedBeforeFork       by the parent process; a child has to open its own
    │   └── PublishingPaused       a message of this ordering key failed; `resume_publishing` goes on
    ├── Aborted (10)               transient: somebody else changed the same thing at the same moment
    ├── OutOfRange (11)            an offset or a time that the log does not hold
    ├── Unimplemented (12)         a command that this door does not know
    │   └── ArrowUnavailable       the server has no pyarrow: its log API is off
    ├── Unavailable (14)           transient
    │   ├── JournalUnavailable     the disk refuses to write; nothing was stored
    │   └── ServerUnreachable      no connection to the server, and no more tries
    ├── DataLoss (15)
    │   └── CorruptLog             stored bytes are not what was written
    └── Unauthenticated (16)       no token, or one that is unknown, revoked or expired

`code` is the number that specification 000 gives (they are gRPC's), `reason` a stable word for programs, `transient` says
whether the same call may succeed later. `str(error)` says what was wrong; `hint`, also shown under a traceback, says what to
do. Required data is positional, so that every error survives pickle on its way through process pools and Spark.
"""

from penstock.errors.argument import InvalidAckId, InvalidArgument, InvalidFilter, InvalidPriority, TransformFailed
from penstock.errors.failed import CorruptLog, DataLoss, JournalUnavailable, ServerUnreachable, Unavailable
from penstock.errors.missing import (
    ActorNotFound,
    ConsumerNotFound,
    CursorNotFound,
    MessageNotFound,
    NotFound,
    PartNotFound,
    QueueNotFound,
    SchemaNotFound,
    SnapshotNotFound,
    SubscriptionNotFound,
    TokenNotFound,
    TopicNotFound,
)
from penstock.errors.refused import (
    Aborted,
    AckDeadlineExceeded,
    AckIdsRefused,
    AlreadyExists,
    ArrowUnavailable,
    BrokerClosed,
    DataDirectoryInUse,
    FailedPrecondition,
    OpenedBeforeFork,
    OutOfRange,
    PermissionDenied,
    PublishingPaused,
    QueueFull,
    RateLimited,
    ResourceExhausted,
    StreamReplaced,
    SubscriptionFull,
    Unauthenticated,
    Unimplemented,
)
from penstock.errors.root import PenstockError

__all__ = [
    "Aborted",
    "AckDeadlineExceeded",
    "AckIdsRefused",
    "ActorNotFound",
    "AlreadyExists",
    "ArrowUnavailable",
    "BrokerClosed",
    "ConsumerNotFound",
    "CorruptLog",
    "CursorNotFound",
    "DataDirectoryInUse",
    "DataLoss",
    "FailedPrecondition",
    "InvalidAckId",
    "InvalidArgument",
    "InvalidFilter",
    "InvalidPriority",
    "JournalUnavailable",
    "MessageNotFound",
    "NotFound",
    "OpenedBeforeFork",
    "OutOfRange",
    "PartNotFound",
    "PenstockError",
    "PermissionDenied",
    "PublishingPaused",
    "QueueFull",
    "QueueNotFound",
    "RateLimited",
    "ResourceExhausted",
    "SchemaNotFound",
    "ServerUnreachable",
    "SnapshotNotFound",
    "StreamReplaced",
    "SubscriptionFull",
    "SubscriptionNotFound",
    "TokenNotFound",
    "TopicNotFound",
    "TransformFailed",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
]

for _name in __all__:
    globals()[_name].__module__ = __name__  # where users import it from, which tracebacks and pickles then name too
