"""How long an object store is waited for: by boto3, S3A and Delta's reader alike, so that one that hangs is told.

A store may take a connection and never answer. Each call has a time then, and is tried again a number of times: some
minutes in all.
"""

from __future__ import annotations

from typing import Final

#: A store that takes longer to be reached isn't there.
CONNECT_SECONDS: Final = 5
#: One that is silent for longer in the middle of a call hangs.
ANSWER_SECONDS: Final = 20
#: A call of boto3 is tried so often, with growing pauses; one of Delta's reader for as long as that takes of silence.
ATTEMPTS: Final = 8
#: One of S3A is tried again so often, with growing pauses; beneath it nothing is, or the times would multiply.
S3A_RETRIES: Final = 6
#: S3A has no shorter times.
_LEAST_OF_S3A: Final = 15


def of_s3a() -> dict[str, str]:
    """The settings of S3A, by name."""
    return {
        "fs.s3a.connection.establish.timeout": f"{max(CONNECT_SECONDS, _LEAST_OF_S3A)}s",
        "fs.s3a.connection.timeout": f"{max(ANSWER_SECONDS, _LEAST_OF_S3A)}s",
        "fs.s3a.attempts.maximum": "0",
        "fs.s3a.retry.limit": str(S3A_RETRIES),
    }


def of_delta() -> dict[str, str]:
    """The options of Delta's reader: how long a call takes with the bytes it gives, and all its attempts."""
    return {
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "timeout": f"{2 * ANSWER_SECONDS}s",
        "retry_timeout": f"{ATTEMPTS * ANSWER_SECONDS}s",
    }
