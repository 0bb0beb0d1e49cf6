// Draws the figures of a report. Figures are JSON in the page; colors are here, since they follow the reader's light or dark.
"use strict";

(function () {
    // Told apart by readers who see few colors, after Okabe and Ito; the second list is lighter, for a dark ground.
    const LIGHT = {
        ink: "#1c2430",
        faint: "#dfe3e8",
        axis: "#8a94a3",
        ground: "#ffffff",
        series: ["#0072b2", "#d55e00", "#00875f", "#b3559a", "#b07d00", "#2b9bd8", "#5f6b7a", "#8a4b2a"],
    };
    const DARK = {
        ink: "#e4e8ee",
        faint: "#333b47",
        axis: "#76808f",
        ground: "#1a1f27",
        series: ["#58a9ea", "#ff8f4d", "#3fcf9d", "#e393cd", "#e8bf4a", "#92d4ff", "#a9b4c2", "#d39b77"],
    };
    // A sheet of paper between its margins, in pixels of a printed page.
    const PRINT_WIDTH = 660;
    const CONFIG = {
        responsive: true,
        displaylogo: false,
        // The only buttons. Left to itself the library has one more, which sends the data to its makers.
        modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
        showSendToCloud: false,
        plotlyServerURL: "",
        toImageButtonOptions: { format: "svg", filename: "plot" },
    };

    function trace(given, theme) {
        const color = theme.series[given.meta.color % theme.series.length];
        const marker = Object.assign({}, given.marker, { color: color });
        if (given.type === "bar") {
            marker.line = Object.assign({}, marker.line, { color: given.meta.is_published ? color : theme.ground });
            if (marker.pattern) {
                marker.pattern = Object.assign({}, marker.pattern, { fgcolor: color, bgcolor: theme.ground });
            }
        }
        return Object.assign({}, given, { marker: marker, line: Object.assign({}, given.line, { color: color }) });
    }

    function axis(given, theme) {
        return Object.assign({}, given, {
            gridcolor: theme.faint,
            linecolor: theme.axis,
            tickcolor: theme.axis,
            spikecolor: theme.axis,
            spikethickness: 1,
        });
    }

    function layout(given, theme, width) {
        return Object.assign({}, given, {
            xaxis: axis(given.xaxis, theme),
            yaxis: axis(given.yaxis, theme),
            autosize: width === undefined,
            width: width,
            margin: { l: 56, r: 16, t: 16, b: 48 },
            paper_bgcolor: "rgba(0,0,0,0)",
            plot_bgcolor: "rgba(0,0,0,0)",
            font: { family: "system-ui, sans-serif", size: 13, color: theme.ink },
            // In pixels: points of a line may lie far apart.
            hoverdistance: 100,
            hoverlabel: { bgcolor: theme.ground, bordercolor: theme.axis, font: { color: theme.ink }, namelength: -1 },
            legend: Object.assign({ orientation: "h", x: 0, xanchor: "left", y: 1.02, yanchor: "bottom" }, given.legend),
            modebar: { bgcolor: "rgba(0,0,0,0)", color: theme.axis, activecolor: theme.ink },
        });
    }

    const figures = JSON.parse(document.getElementById("figures").textContent);
    const dark = window.matchMedia("(prefers-color-scheme: dark)");

    function draw(theme, width) {
        return Promise.all(figures.map(function (figure, number) {
            const data = figure.data.map(function (given) { return trace(given, theme); });
            const place = document.getElementById("plot-" + number);
            return Plotly.react(place, data, layout(figure.layout, theme, width), CONFIG);
        }));
    }

    function drawForScreen() {
        return draw(dark.matches ? DARK : LIGHT, undefined);
    }

    dark.addEventListener("change", drawForScreen);
    window.addEventListener("beforeprint", function () { draw(LIGHT, PRINT_WIDTH); });
    window.addEventListener("afterprint", drawForScreen);
    drawForScreen().then(function (drawn) {
        document.documentElement.dataset.drawn = String(drawn.length);
    });
})();
