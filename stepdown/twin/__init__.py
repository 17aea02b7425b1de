"""What would happen next: the digital twin and the models it must beat."""
