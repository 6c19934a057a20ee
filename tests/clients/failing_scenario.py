"""A client's script whose second scenario fails where the model has another name than `right`."""

from scenarios import main, scenario


@scenario
def first(server):
    assert server.base_url == "http://there/v1"


@scenario
async def second(server):
    assert server.model == "right", "the wrong model"


main()
