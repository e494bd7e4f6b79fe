"""Writes a checkpoint anew with smaller weights, in formats that other engines read too."""
