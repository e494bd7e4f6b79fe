"""Anthropic's Messages API over the same chats: request schemas, translation both ways, nothing else."""
