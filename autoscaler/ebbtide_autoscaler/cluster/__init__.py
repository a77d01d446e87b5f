"""The nodes of the pool: how many there should be, who is asked for them, who lends them, Ray on this machine."""
