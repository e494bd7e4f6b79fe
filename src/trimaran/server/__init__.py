"""HTTP in front of an engine process: one protocol-free data plane, and protocols that translate to it."""
