"""Spark that starts, and answers its first query, in half of the time: Java has an archive of Spark's classes.

Whatever the first query of a session reads, most of its time goes into Java, which loads, verifies and compiles some
ten thousand classes.  It does without most of that where it finds them in an archive, which a Java that has loaded them
writes when it ends.

    start       has the archive used, and made when there is none
    training    the process that makes it: a Spark that does a little of everything
"""
