"""`kunicorn demo`: a whole group on one machine, hurt on purpose, and audited record by record."""
