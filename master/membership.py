"""Workers and their health, from the age of their heartbeats: a state machine that is told the time.

Laws:
- live: heard of within ``suspect_s``; suspect: not; lost: not within ``lost_s``.
- A live worker's replicas count for everything, a suspect one's only as a last resort, a lost one's not at all.
- A worker that was lost, or that the tables knew before this start of the master, counts as suspect until it was heard
  of; a lost one until its full report ended.
- One id is one worker: while it is live, another incarnation is refused, unless it brings the same node and disks (a
  disk has one worker, which locks it, so the former process is gone).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ..common.errors import Conflict

State = Literal["live", "suspect", "lost"]


@dataclass(frozen=True)
class DiskState:
    path: str
    capacity_bytes: int
    used_bytes: int
    available_bytes: int
    failed: bool
    blocks: int


@dataclass
class Member:
    worker_id: str
    node_id: str
    address: str
    incarnation: int
    disk_paths: tuple[str, ...]
    seen_s: float
    heard: bool = True
    """False: only the tables know it; it has not come back since the master started."""
    needs_report: bool = True
    """A full report is wanted."""
    was_lost: bool = False
    """Its replicas do not count before the report has ended."""
    disks: tuple[DiskState, ...] = ()
    draining: bool = False
    """It gets no new blocks."""
    promised_bytes: int = 0
    """Allocated since its last heartbeat told how much is available."""

    @property
    def available_bytes(self) -> int:
        """What one more block may have; a block lies on one disk."""
        most = max((disk.available_bytes for disk in self.disks if not disk.failed), default=0)
        return max(0, most - self.promised_bytes)


class Membership:
    def __init__(self, suspect_s: float, lost_s: float) -> None:
        self._suspect_s = suspect_s
        self._lost_s = lost_s
        self._members: dict[str, Member] = {}
        self._states: dict[str, State] = {}

    def __iter__(self) -> Iterator[Member]:
        return iter(self._members.values())

    def find(self, worker_id: str) -> Member | None:
        return self._members.get(worker_id)

    def state(self, worker_id: str) -> State:
        """As of the last ``tick`` or sign of life; an unknown worker is lost."""
        return self._states.get(worker_id, "lost")

    def live(self) -> tuple[str, ...]:
        return tuple(worker_id for worker_id, state in self._states.items() if state == "live")

    def restore(self, member: Member) -> None:
        """From the tables, at start."""
        self._members[member.worker_id] = member
        self._states[member.worker_id] = "suspect"

    def forget(self, worker_id: str) -> None:
        self._members.pop(worker_id, None)
        self._states.pop(worker_id, None)

    def admit(self, new: Member) -> None:
        """Whether ``register`` may go on. Raises: Conflict."""
        old = self._members.get(new.worker_id)
        if old is None or not old.heard or old.incarnation == new.incarnation:
            return
        same_disks = old.node_id == new.node_id and set(old.disk_paths) == set(new.disk_paths)
        if new.seen_s - old.seen_s <= self._suspect_s and not same_disks:
            raise Conflict(
                f"worker id {new.worker_id!r} is in use by {old.address} on node {old.node_id}, "
                f"heard of {new.seen_s - old.seen_s:.1f} s ago; give this worker another id"
            )

    def register(self, new: Member) -> None:
        """Raises: Conflict."""
        self.admit(new)
        old = self._members.get(new.worker_id)
        new.draining = old is not None and old.draining
        new.was_lost = old is not None and (old.was_lost or self.state(new.worker_id) == "lost")
        self._members[new.worker_id] = new
        self._settle(new, new.seen_s)

    def heartbeat(self, worker_id: str, incarnation: int, disks: tuple[DiskState, ...], now_s: float) -> Member | None:
        """None: not known as this incarnation; it must register."""
        member = self._members.get(worker_id)
        if member is None or not member.heard or member.incarnation != incarnation:
            return None
        if self.state(worker_id) == "lost" and not member.was_lost:
            member.was_lost = member.needs_report = True
        member.seen_s = now_s
        member.disks = disks
        member.promised_bytes = 0
        self._settle(member, now_s)
        return member

    def reported(self, member: Member, now_s: float) -> None:
        """Its full report ended."""
        member.needs_report = member.was_lost = False
        self._settle(member, now_s)

    def tick(self, now_s: float) -> list[tuple[Member, State]]:
        """Brings all states up to date; returns those that changed."""
        changed = []
        for member in self._members.values():
            before = self._states[member.worker_id]
            self._settle(member, now_s)
            if self._states[member.worker_id] != before:
                changed.append((member, self._states[member.worker_id]))
        return changed

    def _settle(self, member: Member, now_s: float) -> None:
        age_s = now_s - member.seen_s
        state: State = "live"
        if age_s > self._lost_s:
            state = "lost"
        elif age_s > self._suspect_s or not member.heard or member.was_lost:
            state = "suspect"
        self._states[member.worker_id] = state
