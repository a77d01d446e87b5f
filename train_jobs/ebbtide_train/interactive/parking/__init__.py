"""Off the slot and back: the slot that is occupied, images by the node's helper, what hinders a park."""
