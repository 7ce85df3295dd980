"""What is generated from the settings: pages for people, and the Helm chart's part."""
