"""``HearthConnector``: vLLM's offloading connector, whose loads may fail without harm."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorTransferResults
from vllm.distributed.kv_transfer.kv_connector.v1.offloading_connector import OffloadingConnector

from .engine_view import check_engine
from .manager import HearthManager
from .offload_spec import engine, make_notices
from .report import HearthWorkerReport
from .scheduler_state import Prefix, offer_again
from .settings import SPEC_DEFAULTS, read_extra_config
from .transfer import HearthWorker


class HearthConnector(OffloadingConnector):  # type: ignore[misc]  # vLLM is not checked
    """vLLM's scheduler half (chunks, hybrid models, preemption) over HearthFS.

    vLLM's own connector asserts that no load ever fails. Here a failed load is told by ``failed_recving``, and with
    ``kv_load_failure_policy: recompute`` the engine then computes that request.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """
        Raises:
            SettingsError: the extra config is unusable. Everything later is a miss, never an error.
        """
        transfer_config = vllm_config.kv_transfer_config
        _name_our_spec(transfer_config)
        settings = read_extra_config(transfer_config.kv_connector_extra_config)
        check_engine(vllm_config)
        notices = make_notices()
        if role is KVConnectorRole.SCHEDULER and transfer_config.kv_load_failure_policy != "recompute":
            notices.warn(
                "policy",
                "kv_load_failure_policy is %r: a request whose KV cannot be loaded will FAIL. "
                'Set "kv_load_failure_policy": "recompute" in --kv-transfer-config',
                transfer_config.kv_load_failure_policy,
            )
        self._computes = False
        with engine(vllm_config, settings, notices):
            super().__init__(vllm_config, role, kv_cache_config)

    @classmethod
    def build_prom_metrics(cls, vllm_config: Any, *args: Any, **kwargs: Any) -> Any:
        _name_our_spec(vllm_config.kv_transfer_config)
        return super().build_prom_metrics(vllm_config, *args, **kwargs)

    @property
    def _manager(self) -> HearthManager:
        manager = self.scheduler.manager
        assert isinstance(manager, HearthManager)
        return manager

    @property
    def _worker(self) -> HearthWorker:
        assert self.connector_worker is not None
        worker = self.connector_worker.worker
        assert isinstance(worker, HearthWorker)
        return worker

    # Scheduler side

    def on_new_request(self, request: Any) -> None:
        self._manager.note_request(request.request_id, request.num_prompt_tokens, request.cache_salt)
        super().on_new_request(request)
        self._find(request, 0)  # the answer may be here before the request's first turn

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        if not self._find(request, num_computed_tokens):
            return None, False
        found, later = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if found and not self._manager.admit(request.request_id, found):
            found, later = super().get_num_new_matched_tokens(request, num_computed_tokens)
        if found is not None:
            self._manager.answered(request.request_id)
        return found, later

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            self._manager.begin_load(request.request_id, num_external_tokens)
        super().update_state_after_alloc(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Any:
        meta = super().build_connector_meta(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            self._manager.linger()
        self._manager.begin_step(scheduler_output.total_num_scheduled_tokens)
        return meta

    def take_events(self) -> Iterable[Any]:
        self._manager.end_step()  # vLLM asks once at the end of each step
        events: Iterable[Any] = super().take_events()
        return events

    def _find(self, request: Any, computed: int) -> bool:
        if request.skip_reading_prefix_cache:
            return True
        if self._manager.is_asking(request.request_id):
            return False
        prefix = Prefix.of(self.scheduler, request, computed)
        return prefix is None or self._manager.find(request.request_id, prefix.tokens, prefix.keys)

    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.kv_connector_worker_meta
        late: set[str] = set()
        if isinstance(report, HearthWorkerReport):
            self._manager.take_report(report)
            late = report.late
        for request_id in connector_output.finished_recving or ():
            failed = request_id in (connector_output.failed_recving or ())
            self._manager.end_load(request_id, failed, request_id in late)
        offer_again(self.scheduler, connector_output.failed_recving)
        super().update_connector_output(connector_output)

    # Worker side

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self._computes = forward_context.attn_metadata is not None
        super().start_load_kv(forward_context, **kwargs)

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        if not self._computes:
            self._worker.linger()
        sent, received = self.get_finished(finished_req_ids)
        failed = self._worker.take_failed_requests() & received
        return KVConnectorTransferResults(sent, received, failed)

    def build_connector_worker_meta(self) -> HearthWorkerReport | None:
        if self.connector_worker is None:
            return None
        base = super().build_connector_worker_meta()
        report = HearthWorkerReport() if base is None else HearthWorkerReport(base.completed_jobs, base.transfer_stats)
        self._worker.report_into(report)
        return None if report.is_empty else report


def _name_our_spec(transfer_config: Any) -> None:
    """Adds the keys by which vLLM finds our spec, so that nobody has to write them."""
    transfer_config.kv_connector_extra_config = {**SPEC_DEFAULTS, **transfer_config.kv_connector_extra_config}
