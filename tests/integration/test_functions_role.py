"""Nobody but trusted roles may act as the role that owns our functions, which the whole server shares."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
import typer

from tests.attacks import REFUSED
from tests.integration.test_strangers import login, role_of
from thresher.cli.schema import check, print_ddl


class Shop:
    """An outbox in the schema `shop` of a database of ours, with an operator; and roles that end with the test."""

    def __init__(self, dsn: str, roles: ExitStack, capsys: pytest.CaptureFixture[str]) -> None:
        self.dsn = dsn
        self._roles = roles
        self.printed: Callable[[], str] = lambda: capsys.readouterr().out
        (self.database,) = self.sql("SELECT current_database()")[0]
        self.functions = f"thresher_{self.database}_shop"
        self.operator = role_of(self.login("operator"))
        self.sql("CREATE SCHEMA shop")

    def sql(self, query: str, dsn: str | None = None) -> list[tuple[object, ...]]:
        with psycopg.connect(dsn or self.dsn) as connection:
            cursor = connection.execute(query.encode())
            return [] if cursor.description is None else cursor.fetchall()

    def login(self, kind: str, options: str = "") -> str:
        own = self._roles.enter_context(login(self.dsn, kind))
        self.sql(f"ALTER ROLE {role_of(own)} {options}" if options else "SELECT 1")
        return own

    @contextmanager
    def role(self, name: str) -> Iterator[None]:
        """Drop the role when the test ends, if it is there."""
        yield
        if self.sql(f"SELECT 1 FROM pg_roles WHERE rolname = '{name}'"):
            self.sql(f'DROP OWNED BY "{name}" CASCADE; DROP ROLE "{name}"')

    def ends(self, name: str) -> None:
        self._roles.enter_context(self.role(name))

    def prints(self, functions_role: str | None = None, schema: str = "shop") -> str:
        given = {"operator_role": self.operator, "dispatcher_role": self.operator, "functions_role": functions_role}
        print_ddl("box", schema, relay=True, **given)  # type: ignore[arg-type]
        return self.printed()

    def checked(self) -> tuple[int, str]:
        with pytest.raises(typer.Exit) as ended:
            check(ds=self.dsn, outbox="box", schema="shop")
        return ended.value.exit_code, self.printed()


@pytest.fixture
def shop(dsn: str, capsys: pytest.CaptureFixture[str]) -> Iterator[Shop]:
    with ExitStack() as roles:
        made = Shop(dsn, roles, capsys)
        made.ends(made.functions)
        made.ends("thresher_functions")
        yield made


def test_a_neighbour_never_acts_as_our_functions_owner(shop: Shop) -> None:
    neighbour = shop.login("neighbour", "CREATEROLE")
    elsewhere = psycopg.conninfo.make_conninfo(neighbour, dbname="postgres")
    shop.sql(f"GRANT CONNECT ON DATABASE {shop.database} TO PUBLIC")
    # The name of other databases' role is not ours.
    shop.sql("CREATE ROLE thresher_functions", elsewhere)
    shop.sql(shop.prints())
    shop.sql(f"GRANT thresher_functions TO {role_of(neighbour)}", elsewhere)
    with pytest.raises(REFUSED):
        shop.sql("SELECT * FROM shop.box_dead", neighbour)
    with pytest.raises(REFUSED):
        shop.sql(f"GRANT {shop.functions} TO {role_of(neighbour)}", elsewhere)
    # Our own name, before us: nothing is given to it.
    shop.sql(f"DROP OWNED BY {shop.functions} CASCADE; DROP ROLE {shop.functions}")
    shop.sql(f"CREATE ROLE {shop.functions}", elsewhere)
    with pytest.raises(psycopg.errors.RaiseException) as refused:
        shop.sql(shop.prints())
    remedy = f"REVOKE {shop.functions} FROM {role_of(neighbour)} CASCADE"
    assert remedy in str(refused.value)
    assert "--functions-role" in str(refused.value)
    shop.sql(remedy)
    shop.sql(shop.prints())
    with pytest.raises(REFUSED):
        shop.sql(f"GRANT {shop.functions} TO {role_of(neighbour)}", elsewhere)


@pytest.mark.parametrize(
    ("change", "mend"),
    [
        ("ALTER ROLE FUNCTIONS LOGIN", "ALTER ROLE FUNCTIONS NOLOGIN"),
        ("ALTER ROLE FUNCTIONS SUPERUSER", "ALTER ROLE FUNCTIONS NOSUPERUSER"),
        ("ALTER ROLE FUNCTIONS BYPASSRLS", "ALTER ROLE FUNCTIONS NOBYPASSRLS"),
        ("ALTER ROLE FUNCTIONS CREATEROLE", "ALTER ROLE FUNCTIONS NOCREATEROLE"),
        ("GRANT FUNCTIONS TO STRANGER", "REVOKE FUNCTIONS FROM STRANGER CASCADE"),
        (
            "GRANT FUNCTIONS TO STRANGER WITH ADMIN TRUE, INHERIT FALSE, SET FALSE",
            "REVOKE FUNCTIONS FROM STRANGER CASCADE",
        ),
    ],
)
def test_a_role_that_others_act_as_is_refused_and_found(shop: Shop, change: str, mend: str) -> None:
    stranger = role_of(shop.login("stranger"))

    def named(text: str) -> str:
        return text.replace("FUNCTIONS", shop.functions).replace("STRANGER", stranger)

    shop.sql(shop.prints(shop.functions))
    assert shop.checked()[0] == 0
    shop.sql(named(change))
    code, told = shop.checked()
    assert code == 1
    assert f'breaks: functions of "shop"."box": functions run with the rights of the role {shop.functions}' in told
    assert named(mend) in told
    with pytest.raises(psycopg.errors.RaiseException, match=named(mend)):
        shop.sql(shop.prints(shop.functions))
    shop.sql(named(mend))
    assert shop.checked()[0] == 0
    shop.sql(shop.prints(shop.functions))


def test_a_member_by_way_of_another_role_is_found(shop: Shop) -> None:
    first, second = (role_of(shop.login(kind)) for kind in ("first", "second"))
    shop.sql(shop.prints(shop.functions))
    shop.sql(f"GRANT {shop.functions} TO {first}; GRANT {first} TO {second}")
    told = shop.checked()[1]
    assert f"REVOKE {shop.functions} FROM {first} CASCADE" in told
    assert f"REVOKE {first} FROM {second} CASCADE" in told


def test_owners_of_schema_and_database_may_act_as_it(shop: Shop) -> None:
    owner, member, dba, chief = (role_of(shop.login(kind)) for kind in ("owner", "member", "dba", "chief"))
    shop.sql(f"ALTER SCHEMA shop OWNER TO {owner}; GRANT {owner} TO {member}; ALTER ROLE {chief} SUPERUSER")
    (before,) = shop.sql("SELECT datdba::regrole FROM pg_database WHERE datname = current_database()")[0]
    shop.sql(f"ALTER DATABASE {shop.database} OWNER TO {dba}")
    try:
        shop.sql(shop.prints(shop.functions))
        shop.sql(f"GRANT {shop.functions} TO {owner}, {member}, {dba}, {chief}")
        assert shop.checked()[0] == 0
        shop.sql(shop.prints(shop.functions))
    finally:
        shop.sql(f"ALTER DATABASE {shop.database} OWNER TO {before}; ALTER SCHEMA shop OWNER TO CURRENT_USER")


def test_each_schemas_owner_makes_a_role_of_its_own(shop: Shop) -> None:
    first, second = (shop.login(kind, "CREATEROLE") for kind in ("first", "second"))
    # Dropped before the roles that made them.
    for schema, owner in (("one", first), ("two", second)):
        shop.ends(f"thresher_{shop.database}_{schema}")
        shop.sql(f"CREATE SCHEMA {schema} AUTHORIZATION {role_of(owner)}")
        for _ in range(2):
            shop.sql(shop.prints(schema=schema), owner)
    shop.ends("shared_functions")
    shop.sql("DROP SCHEMA one, two CASCADE")
    for schema, owner in (("one", first), ("two", second)):
        shop.sql(f"CREATE SCHEMA {schema} AUTHORIZATION {role_of(owner)}")
    shop.sql(shop.prints("shared_functions", schema="one"), first)
    with pytest.raises(psycopg.errors.RaiseException, match=r"shared_functions.*--functions-role"):
        shop.sql(shop.prints("shared_functions", schema="two"), second)
    # A superuser's role has no admin, and an owner without one is told the flag.
    shop.sql("DROP SCHEMA one, two CASCADE; DROP OWNED BY shared_functions; DROP ROLE shared_functions")
    shop.sql("CREATE ROLE shared_functions")
    shop.sql(f"CREATE SCHEMA two AUTHORIZATION {role_of(second)}")
    with pytest.raises(psycopg.errors.RaiseException, match=r"made by another role.*--functions-role"):
        shop.sql(shop.prints("shared_functions", schema="two"), second)


def test_names_of_any_length_have_a_role_of_their_own(shop: Shop) -> None:
    made = (
        "SELECT DISTINCT proowner::regrole::text FROM pg_proc p WHERE pronamespace = '{}'::regnamespace AND prosecdef"
    )
    owners = set()
    for schema in ("s" * 62, "s" * 63, "ü" * 31, 'a "quoted" $thresher$ {name} %s'):
        quoted = '"' + schema.replace('"', '""') + '"'
        shop.sql(f"CREATE SCHEMA {quoted}")
        for _ in range(2):
            shop.sql(shop.prints(schema=schema))
        ((owner,),) = shop.sql(made.format(quoted))
        name = str(owner).strip('"').replace('""', '"')
        shop.ends(str(owner).strip('"'))
        assert len(name.encode()) <= 63
        assert name.startswith("thresher_")
        owners.add(name)
    assert len(owners) == 4


def test_functions_of_an_earlier_versions_role_change_hands(shop: Shop) -> None:
    shop.sql(shop.prints("thresher_functions"))
    with pytest.raises(psycopg.errors.RaiseException, match=r"DROP FUNCTION .*box_dead_drop\("):
        shop.sql(shop.prints())
    page = Path("docs/operations.md").read_text()
    (given_up,) = re.findall(r"^DROP OWNED BY thresher_functions;", page, re.MULTILINE)
    shop.sql(given_up + shop.prints())
    shop.sql("DROP ROLE thresher_functions")
    assert shop.checked()[0] == 0


@pytest.mark.parametrize("superuser", [True, False])
def test_an_operators_functions_are_taken_back_as_documented(shop: Shop, superuser: bool) -> None:
    owner = shop.dsn
    if not superuser:
        owner = shop.login("owner", "CREATEROLE")
        shop.sql(f"ALTER SCHEMA shop OWNER TO {role_of(owner)}")
        shop.ends(shop.functions)
    shop.sql(shop.prints(), owner)
    held = f"SELECT count(*) FROM pg_proc WHERE prosecdef AND has_function_privilege('{shop.operator}', oid, 'EXECUTE')"
    held += " AND pronamespace = 'shop'::regnamespace"
    assert shop.sql(held) == [(5,)]
    page = Path("docs/rights.md").read_text()
    (taken,) = re.findall(
        r"^GRANT thresher_shop_shop TO CURRENT_USER;.*?^REVOKE thresher_shop_shop [^;]*;", page, re.M | re.S
    )
    for written, here in (("thresher_shop_shop", shop.functions), ("orders_", "box_"), ("oncall", shop.operator)):
        taken = taken.replace(written, here)
    shop.sql(taken, owner)
    assert shop.sql(held) == [(0,)]
    assert shop.checked()[0] == 0
