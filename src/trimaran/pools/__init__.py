"""Engines that prefill and engines that decode: how pages go from one process to another."""
