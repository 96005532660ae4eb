"""Learning: the maths (ppo), its data (rollouts), and what turns trajectories into them (batches).

Nothing here imports torch until one of the modules is imported.
"""
