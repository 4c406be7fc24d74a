"""The master: namespace, block map, sessions and grants over one LMDB file, served by gRPC (DESIGN sections 3 to 5)."""
