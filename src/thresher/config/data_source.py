"""The key `data_source` of every pipeline that has a database: a connection string, kept as a secret."""

from typing import Annotated

from thresher.config.form import kept_secret
from thresher.config.setting import HoldsSecrets, Names, Required, Servers
from thresher.core.secrets import Secret
from thresher.db.postgres.dsn import databases_of, secrets_of_dsn, shown_dsn

DataSource = Annotated[
    Secret | None,
    *kept_secret(shown_dsn),
    Names(flags=("--ds", "--data-source"), variable="DS"),
    HoldsSecrets(secrets_of_dsn),
    Servers(databases_of),
    Required("where is the database?"),
]
