"""What a model needs of GPUs, by arithmetic alone: nothing is loaded, nothing is measured."""
