"""Our ``OffloadingSpec``: what vLLM's connector makes its two halves from."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator
from typing import Any

from vllm.logger import init_logger
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingManager, OffloadingSpec, OffloadingWorker
from vllm.v1.kv_offload.config import OffloadingConfig

from ..common.errors import NotSupported
from . import metrics
from .breakeven import BreakEven
from .device_pages import choose_mover
from .engine_view import identity_of
from .identity import MANIFEST, KvIdentity, readable_name
from .lookups import LookupTable
from .manager import HearthManager
from .neighbours import MAX_MANIFESTS, explain
from .notices import Notices
from .settings import ConnectorSettings
from .storage import Storage
from .transfer import HearthWorker


@dataclasses.dataclass(frozen=True)
class _Engine:
    vllm_config: Any
    settings: ConnectorSettings
    notices: Notices


_engine: contextvars.ContextVar[_Engine] = contextvars.ContextVar("hearthfs_engine")


@contextlib.contextmanager
def engine(vllm_config: Any, settings: ConnectorSettings, notices: Notices) -> Iterator[None]:
    """Within it a spec may be made: vLLM's factory hands a spec only a part of what the engine is."""
    token = _engine.set(_Engine(vllm_config, settings, notices))
    try:
        yield
    finally:
        _engine.reset(token)


def make_notices() -> Notices:
    return Notices(init_logger("vllm.hearthfs"))


class HearthOffloadingSpec(OffloadingSpec):  # type: ignore[misc]  # vLLM is not checked
    """One per process; gives the scheduler its manager, or a worker its mover of pages."""

    def __init__(self, config: OffloadingConfig) -> None:
        """
        Raises:
            NotSupported: made by something else than ``HearthConnector``.
        """
        super().__init__(config)
        context = _engine.get(None)
        if context is None:
            raise NotSupported("HearthOffloadingSpec works under HearthConnector only: kv_connector: HearthConnector")
        self._settings = context.settings
        self._notices = context.notices
        self._identity: KvIdentity = identity_of(context.vllm_config, config, context.settings, context.notices)
        # Of replicated bytes only rank 0 stores; vLLM takes the others' stores for done.
        self.replicated_layout = config.replicated_layout
        self._storage = Storage(context.settings, context.notices)

    @classmethod
    def build_metric_definitions(cls, extra_config: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG003 - vLLM's signature
        return metrics.definitions()

    def get_manager(self) -> OffloadingManager:
        directories = [self._identity.directory(rank) for rank in self._identity.ranks()]
        storage = self._storage
        table = LookupTable(
            lambda names: storage.lookup(directories, names),
            self._settings,
            self._notices,
            watch=self.kv_events_config.enable_kv_cache_events,
        )

        def opened() -> None:
            table.clear()
            self._tell_neighbours()

        storage.on_change = opened
        storage.start()
        table.start()
        bytes_per_token = (
            self.config.worker_kv_bytes_per_block * len(directories) / self.config.groups[0].tokens_per_block
        )
        return HearthManager(
            table,
            tuple(group.group_id for group in self.config.groups),
            len(directories),
            self._settings,
            self._notices,
            BreakEven(bytes_per_token, self._settings.min_load_tokens, self._settings.load_when == "always"),
            emit_events=self.kv_events_config.enable_kv_cache_events,
            close_storage=storage.close,
        )

    def _tell_neighbours(self) -> None:
        model = readable_name(self._identity.model)
        lines = explain(self._identity.manifest(), self._storage.manifests(model, MAX_MANIFESTS))
        for number, line in enumerate(lines):
            self._notices.warn(
                f"neighbour {number}", "chunks of %s that this engine cannot use are in the root: %s", model, line
            )

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """
        Raises:
            NotSupported: no way to move this KV cache's pages is known, or none that moves them right.
        """
        storage, rank = self._storage, self.config.parallel.rank
        manifest = (self._identity.directory(rank).rpartition("/")[0], MANIFEST, self._identity.manifest())
        if rank == 0:
            storage.on_change = lambda: storage.put_manifest_once(*manifest)
        storage.start()
        groups = [
            [kv_caches.tensors[ref.tensor_idx].tensor[:, : ref.page_size_bytes] for ref in refs]
            for refs in kv_caches.group_data_refs
        ]
        mover, how = choose_mover(groups, self.blocks_per_chunk)
        self._notices.info("KV pages are moved by %s, as a probe found right", how)
        return HearthWorker(
            mover,
            self.blocks_per_chunk,
            self._identity,
            self.config.parallel.rank,
            self._settings,
            self._storage,
            self._notices,
        )
