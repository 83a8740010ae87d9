"""The suite that runs inside each environment: torch, pytest and the standard library, Python 3.8 to 3.14.

`catalogue` and `topology` import no torch: a program that plans a run reads them too.
"""
