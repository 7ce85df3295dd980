"""Clients made of the settings, for whoever asks the cluster without being the service: commands, jobs, checks."""
