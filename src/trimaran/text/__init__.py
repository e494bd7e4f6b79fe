"""Text to tokens and back: tokenizers, chat templates, incremental detokenising with stop strings."""
