"""`python -m harness.report`: one page with a sweep's figures and tables, and one to read its episodes turn by turn."""
