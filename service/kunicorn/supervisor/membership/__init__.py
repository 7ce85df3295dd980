"""Where our partitions come from: the group that assigns them, or the settings that name them."""
