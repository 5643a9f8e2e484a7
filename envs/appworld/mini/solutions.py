"""Pieces of solutions that the scenarios share, one string for each step."""


def docs(app: str, *apis: str) -> str:
    """Look up an app's APIs: their list, or the full documents of some."""
    if not apis:
        return f'print(apis.api_docs.show_api_descriptions(app_name="{app}"))'
    return "\n".join(f'print(apis.api_docs.show_api_doc(app_name="{app}", api_name="{api}"))' for api in apis)


def login(*apps: str) -> str:
    """Log in; the token of each app is then in ``<app>_token``."""
    lines = [
        'passwords = {p["account_name"]: p["password"] for p in apis.supervisor.show_account_passwords()}',
        "profile = apis.supervisor.show_profile()",
    ]
    for app in apps:
        by = "phone_number" if app == "phone" else "email"
        lines.append(
            f'{app}_token = apis.{app}.login(username=profile["{by}"], password=passwords["{app}"])["access_token"]'
        )
    return "\n".join(lines)


def paged(name: str, call: str) -> str:
    """Collect all pages of an API into the list ``name``. ``call`` lacks its closing bracket."""
    return f"""{name} = []
for page_index in range(40):
    page = {call}, page_index=page_index, page_limit=20)
    if not page:
        break
    {name}.extend(page)
print(len({name}))"""


def finish(answer: str = "") -> str:
    return f"apis.supervisor.complete_task({'answer=' + answer if answer else ''})"
