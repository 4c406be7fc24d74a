"""The SDK: one blocking, thread-safe client of the namespace and of the bytes."""
