"""``python -m cuda_agent``."""

from cuda_agent.cli.main import main

if __name__ == "__main__":
    main()
