"""Damages what may come from strangers (requests, model files, templates, manifests) and watches what becomes of it."""
