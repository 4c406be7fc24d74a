"""When to send a failed call again. Pure: the caller sleeps, knows the time and brings the random number."""

from __future__ import annotations

from dataclasses import dataclass

from ..common.errors import HearthError, StaleEpoch, StaleSession


@dataclass(frozen=True)
class RetryPolicy:
    """Exponential backoff with full jitter, bound by a deadline and by a number of attempts.

    A call that was refused because its session is stale goes again at once, the first time: registration is the wait.
    """

    first_delay_s: float = 0.05
    max_delay_s: float = 2.0
    max_attempts: int = 100

    def delay_s(
        self, attempt: int, elapsed_s: float, timeout_s: float, error: HearthError, random: float
    ) -> float | None:
        """How long to wait before the next attempt, or None: give up and raise ``error``.

        Args:
            attempt: how many were made, at least 1.
            elapsed_s: since the whole call began.
            timeout_s: of the whole call.
            random: uniform in [0, 1).
        """
        if not error.retryable or attempt >= self.max_attempts:
            return None
        if attempt == 1 and isinstance(error, StaleSession | StaleEpoch):
            delay = 0.0
        else:
            delay = min(self.max_delay_s, self.first_delay_s * 2 ** min(attempt - 1, 30))
            delay *= 0.5 + random / 2
        return delay if elapsed_s + delay < timeout_s else None


def attempt_timeout_s(elapsed_s: float, timeout_s: float, attempt_limit_s: float) -> float:
    """The deadline of the next attempt: what is left of the call's, at most ``attempt_limit_s``; never negative.

    An attempt is shorter than the call, so that a peer that hangs (not one that is gone) costs one attempt.
    """
    return max(0.0, min(attempt_limit_s, timeout_s - elapsed_s))
