"""`make chaos`: a group under load is hurt by seeded schedules of faults, and every record is accounted for."""
