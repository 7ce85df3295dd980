import os, sys
from pathlib import Path
from kunicorn.settings import load
from kunicorn.supervisor.app import run
sys.exit(run(load(Path(sys.argv[sys.argv.index("--config")+1]), os.environ)))
