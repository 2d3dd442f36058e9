"""How requests are executed.  New parts of the executor live here; the older ones are modules beside this folder."""
