"""What every part shares: types, the error family, settings, clock, checksums, telemetry."""
