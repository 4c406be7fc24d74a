from hearthfs.bench import experiments_report, traffic


def test_traffic_is_the_same_for_the_same_seed():
    assert traffic.mixed(3, 20, 4) == traffic.mixed(3, 20, 4) != traffic.mixed(4, 20, 4)


def test_mixed_traffic_asks_again_about_popular_documents():
    heads = [tuple(one[: traffic.DOCUMENT_TOKENS]) for one in traffic.mixed(1, 400, 8) if len(one) > 1000]
    counts = sorted((heads.count(head) for head in set(heads)), reverse=True)
    assert len(counts) == 8
    assert counts[0] > 3 * counts[-1]


def test_users_ask_other_questions_about_the_same_document():
    (first,), (second,) = traffic.users("a", 1, 1), traffic.users("a", 1, 2)
    assert first[: traffic.DOCUMENT_TOKENS] == second[: traffic.DOCUMENT_TOKENS]
    assert first != second


def test_the_page_says_what_is_not_reached():
    pairs = {"mean": 0.95, "low": 0.91, "high": 0.99, "pairs": 24, "cpu_s_with": 1.5, "cpu_s_without": 1.4}
    result = {"machine": "m", "model": "n", "tax": pairs, "short": {**pairs, "low": 0.96}}
    page = experiments_report.as_markdown(result)
    assert "the bar of 0.92 is NOT reached" in page
    assert "the bar of 0.95 is reached" in page
    assert "Time to the first token\n" not in page
