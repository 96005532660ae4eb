"""One optimisation from task to verdict, the folder it writes, and what is made of a finished one."""
