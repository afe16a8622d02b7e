package edgespec.app;

import android.content.Context;
import android.graphics.drawable.GradientDrawable;
import android.view.View;
import android.view.ViewGroup;
import android.widget.LinearLayout;
import android.widget.TextView;

/** Makes the views that both screens use. Text sizes are in sp, so they follow the user's font size. */
final class Ui {
    /** Smallest width and height of a view to touch, in dp, from Android's accessibility guide. */
    static final int TOUCH = 48;

    private Ui() {}

    static int dp(Context context, int dp) {
        return Math.round(dp * context.getResources().getDisplayMetrics().density);
    }

    static LinearLayout column(Context context) {
        LinearLayout column = new LinearLayout(context);
        column.setOrientation(LinearLayout.VERTICAL);
        return column;
    }

    static TextView text(Context context, CharSequence text, int sp, int color) {
        TextView view = new TextView(context);
        style(view, sp, color);
        view.setText(text);
        return view;
    }

    static void style(TextView view, int sp, int color) {
        view.setTextSize(sp);
        view.setTextColor(view.getContext().getColor(color));
    }

    static void touchable(View view) {
        view.setMinimumHeight(dp(view.getContext(), TOUCH));
        view.setMinimumWidth(dp(view.getContext(), TOUCH));
    }

    static void pad(View view, int horizontal, int vertical) {
        int h = dp(view.getContext(), horizontal);
        int v = dp(view.getContext(), vertical);
        view.setPadding(h, v, h, v);
    }

    static GradientDrawable bubble(Context context, int color) {
        GradientDrawable bubble = new GradientDrawable();
        bubble.setColor(context.getColor(color));
        bubble.setCornerRadius(dp(context, 12));
        return bubble;
    }

    /** Returns parameters for a view as wide as its parent and as high as its content. */
    static LinearLayout.LayoutParams wide() {
        return new LinearLayout.LayoutParams(
                ViewGroup.LayoutParams.MATCH_PARENT, ViewGroup.LayoutParams.WRAP_CONTENT);
    }

    static LinearLayout.LayoutParams small() {
        return new LinearLayout.LayoutParams(
                ViewGroup.LayoutParams.WRAP_CONTENT, ViewGroup.LayoutParams.WRAP_CONTENT);
    }
}
