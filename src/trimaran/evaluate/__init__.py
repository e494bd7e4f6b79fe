"""What a configuration costs in exactness and ability, against another: ``trimaran eval``."""
