"""All of pyfuse3's operations. ``poll`` is left to the kernel, which answers it for regular files by itself."""

from __future__ import annotations

from .cluster_file import ClusterFile
from .file_operations import FileOperations
from .files import Files
from .namespace_operations import NamespaceOperations
from .tree import Tree


class Operations(NamespaceOperations, FileOperations):
    supports_dot_lookup = True
    enable_writeback_cache = False
    enable_acl = False

    def __init__(self, tree: Tree, files: Files, cluster_file: ClusterFile, node_id: str) -> None:
        super().__init__()
        self.tree = tree
        self.files = files
        self.cluster_file = cluster_file
        self.node_id = node_id
