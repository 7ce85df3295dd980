"""Text generated from the settings' declarations: pages for people, and the Helm chart's part."""
