"""Drawing that several rooms share: the style of figures, maps of class ages, curves with bands.

Knows arrays and matplotlib, which is imported when something is drawn. Whose arrays they are, a run's or a study's, it
does not know.
"""
