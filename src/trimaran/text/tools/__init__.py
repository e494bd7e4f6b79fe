"""Tool calls and thoughts in answers: one description a family, from which parser and grammar are made."""
