"""Care: what keeps a tier tidy and sound: retention, sealing, audit, rebuild."""
