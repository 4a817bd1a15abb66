use super::*;

const DAY: &str = "Sun, 06 Nov 1994 08:49:37 GMT";
const NEXT_DAY: &str = "Mon, 07 Nov 1994 08:49:37 GMT";

fn headers(list: &[(&'static str, &'static str)]) -> HeaderMap {
    list.iter()
        .map(|(name, value)| {
            (
                HeaderName::from_static(name),
                HeaderValue::from_static(value),
            )
        })
        .collect()
}

fn answer(
    status: u16,
    list: &[(&'static str, &'static str)],
    range: RangeRequest<'_>,
) -> Result<Answer, FetchReason> {
    let status = StatusCode::from_u16(status).unwrap();
    interpret(status, &headers(list), range).map_err(|problem| problem.reason)
}

fn tag() -> Validator {
    Validator::ETag("\"a\"".to_owned())
}

#[test]
fn full_response_has_a_length_and_a_validator() {
    let all = RangeRequest::default();
    let bytes = |total, validator| {
        Ok(Answer::Bytes {
            offset: 0,
            total,
            validator,
        })
    };
    assert_eq!(
        answer(200, &[("content-length", "7"), ("etag", "\"a\"")], all),
        bytes(Some(7), Some(tag()))
    );
    assert_eq!(
        answer(200, &[("content-length", "7"), ("etag", "W/\"a\"")], all),
        bytes(Some(7), None)
    );
    let dated = [
        ("content-length", "7"),
        ("last-modified", DAY),
        ("date", NEXT_DAY),
        ("etag", "W/\"a\""),
    ];
    assert_eq!(
        answer(200, &dated, all),
        bytes(Some(7), Some(Validator::LastModified(DAY.to_owned())))
    );
    let just_now = [
        ("content-length", "7"),
        ("last-modified", DAY),
        ("date", DAY),
    ];
    assert_eq!(answer(200, &just_now, all), bytes(Some(7), None));
    assert_eq!(
        answer(200, &[("transfer-encoding", "chunked")], all),
        bytes(None, None)
    );
    assert_eq!(
        answer(200, &[], all),
        Err(FetchReason::ServerRefused),
        "its end could be a cut connection"
    );
    assert_eq!(
        answer(
            200,
            &[],
            RangeRequest {
                has_checksum: true,
                ..all
            }
        ),
        bytes(None, None)
    );
    assert_eq!(
        answer(
            200,
            &[("content-length", "7"), ("content-encoding", "gzip")],
            all
        ),
        Err(FetchReason::ServerRefused)
    );
}

#[test]
fn only_the_rest_of_the_same_image_is_put_behind_a_part() {
    let tag = tag();
    let range = RangeRequest {
        offset: 3,
        validator: Some(&tag),
        total: Some(7),
        has_checksum: false,
    };
    let bytes = Ok(Answer::Bytes {
        offset: 3,
        total: Some(7),
        validator: Some(tag.clone()),
    });
    assert_eq!(
        answer(
            206,
            &[("content-range", "bytes 3-6/7"), ("etag", "\"a\"")],
            range
        ),
        bytes
    );
    assert_eq!(
        answer(
            206,
            &[("content-range", "bytes 3-6/*"), ("etag", "\"a\"")],
            range
        ),
        bytes
    );
    assert_eq!(
        answer(206, &[("content-range", "bytes 3-6/7")], range),
        Ok(Answer::Changed),
        "a tag must stand there"
    );
    let date = Validator::LastModified(DAY.to_owned());
    let dated = Ok(Answer::Bytes {
        offset: 3,
        total: Some(7),
        validator: Some(date.clone()),
    });
    let dated_range = RangeRequest {
        validator: Some(&date),
        ..range
    };
    assert_eq!(
        answer(206, &[("content-range", "bytes 3-6/7")], dated_range),
        dated
    );
    let no_end = answer(
        206,
        &[("content-range", "bytes 3-4/*"), ("etag", "\"a\"")],
        RangeRequest {
            total: None,
            ..range
        },
    );
    assert_eq!(
        no_end,
        Ok(Answer::Changed),
        "its end need not be the image's"
    );
    for other in [
        &[("content-range", "bytes 2-6/7"), ("etag", "\"a\"")][..],
        &[("content-range", "bytes 3-7/8"), ("etag", "\"a\"")],
        &[("content-range", "bytes 3-6/7"), ("etag", "\"b\"")],
        &[("content-range", "bytes 6-3/7"), ("etag", "\"a\"")],
        &[("content-type", "multipart/byteranges")],
    ] {
        assert_eq!(answer(206, other, range), Ok(Answer::Changed), "{other:?}");
    }
    assert_eq!(
        answer(
            206,
            &[("content-range", "bytes 0-6/7")],
            RangeRequest::default()
        ),
        Err(FetchReason::ServerRefused)
    );
    let all = answer(200, &[("content-length", "9")], range);
    assert_eq!(
        all,
        Ok(Answer::Bytes {
            offset: 0,
            total: Some(9),
            validator: None
        })
    );
}

#[test]
fn a_part_that_is_longer_than_the_image_is_of_no_use() {
    let tag = tag();
    let range = RangeRequest {
        offset: 7,
        validator: Some(&tag),
        total: None,
        has_checksum: false,
    };
    for content_range in ["bytes */7", "bytes */6"] {
        assert_eq!(
            answer(416, &[("content-range", content_range)], range),
            Ok(Answer::Changed)
        );
    }
    assert_eq!(
        answer(416, &[], RangeRequest::default()),
        Err(FetchReason::ServerRefused)
    );
}

#[test]
fn each_status_says_whether_another_try_has_a_point() {
    for (status, reason) in [
        (400, FetchReason::ServerRefused),
        (401, FetchReason::ServerRefused),
        (404, FetchReason::ServerRefused),
        (204, FetchReason::ServerRefused),
        (304, FetchReason::ServerRefused),
        (302, FetchReason::ServerRefused),
        (408, FetchReason::ServerFailed),
        (429, FetchReason::ServerFailed),
        (500, FetchReason::ServerFailed),
        (503, FetchReason::ServerFailed),
    ] {
        assert_eq!(
            answer(status, &[], RangeRequest::default()),
            Err(reason),
            "{status}"
        );
    }
    let on = answer(308, &[("location", "/b")], RangeRequest::default());
    assert_eq!(on, Ok(Answer::Redirect("/b".to_owned())));
}

#[test]
fn retry_after_is_parsed_as_seconds_or_as_a_date() {
    let after = |headers: &[(&'static str, &str)]| {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(
                HeaderName::from_static(name),
                HeaderValue::from_str(value).unwrap(),
            );
        }
        interpret(
            StatusCode::SERVICE_UNAVAILABLE,
            &map,
            RangeRequest::default(),
        )
        .unwrap_err()
        .retry_after
    };
    let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    assert_eq!(after(&[("retry-after", "120")]), seconds(120));
    assert_eq!(
        after(&[date, ("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")]),
        seconds(30)
    );
    assert_eq!(
        after(&[date, ("retry-after", "Sun, 06 Nov 1994 08:49:07 GMT")]),
        seconds(0)
    );
    // Without the server's clock, its date says nothing.
    assert_eq!(
        after(&[("retry-after", "Sun, 06 Nov 1994 08:50:07 GMT")]),
        None
    );
    for nothing in [
        &[("retry-after", "soon")][..],
        &[("retry-after", "-1")],
        &[date],
    ] {
        assert_eq!(after(nothing), None, "{nothing:?}");
    }
}
