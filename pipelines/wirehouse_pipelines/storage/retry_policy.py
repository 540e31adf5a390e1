"""The retry policy for object stores, the same for the three clients: boto3, Hadoop's S3A and Delta's reader.

A store may accept a connection and never answer. Each request therefore has a timeout and a number of retries. A store
that hangs is reported after a few minutes.
"""

from __future__ import annotations

from typing import Final

#: Timeout for connecting.
CONNECT_SECONDS: Final = 5
#: Timeout for the next bytes of a response.
ANSWER_SECONDS: Final = 20
#: Attempts of a boto3 call, with growing pauses. Delta's reader retries for the time that these take if all time out.
ATTEMPTS: Final = 8
#: Retries of an S3A call, with growing pauses. The AWS client below S3A doesn't retry, or the times would multiply.
S3A_RETRIES: Final = 6
#: S3A accepts no shorter timeouts.
_LEAST_OF_S3A: Final = 15


def of_s3a() -> dict[str, str]:
    """The policy as settings of S3A."""
    return {
        "fs.s3a.connection.establish.timeout": f"{max(CONNECT_SECONDS, _LEAST_OF_S3A)}s",
        "fs.s3a.connection.timeout": f"{max(ANSWER_SECONDS, _LEAST_OF_S3A)}s",
        "fs.s3a.attempts.maximum": "0",
        "fs.s3a.retry.limit": str(S3A_RETRIES),
    }


def of_delta() -> dict[str, str]:
    """The policy as options of Delta's reader. Its `timeout` covers a whole request, `retry_timeout` all attempts."""
    return {
        "connect_timeout": f"{CONNECT_SECONDS}s",
        "timeout": f"{2 * ANSWER_SECONDS}s",
        "retry_timeout": f"{ATTEMPTS * ANSWER_SECONDS}s",
    }
