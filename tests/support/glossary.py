from harness.records.glossary import GLOSSARY


def check_glossary(metrics):
    """Fails for a name that the glossary lacks. Of a name with more than two parts, it has the first two."""
    missing = {"/".join(name.split("/")[:2]) for name in metrics} - {"update"} - GLOSSARY.keys()
    assert not missing, f"add a line for {missing} to harness/records/glossary.py, then run python tools/reference.py"
