"""Who holds what, and where trainings are carried out."""
