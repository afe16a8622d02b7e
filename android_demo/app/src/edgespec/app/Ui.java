package edgespec.app;

import android.content.Context;
import android.graphics.drawable.GradientDrawable;
import android.view.View;
import android.view.ViewGroup;
import android.widget.LinearLayout;
import android.widget.TextView;

/** The few things that both screens are made of. Sizes of text are in sp, so they follow the user's. */
final class Ui {
    /** The smallest side of what can be touched, in dp, as Android's accessibility guide has it. */
    static final int TOUCH = 48;

    private Ui() {
    }

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

    /** As wide as what is around it, as high as needed. */
    static LinearLayout.LayoutParams wide() {
        return new LinearLayout.LayoutParams(
                ViewGroup.LayoutParams.MATCH_PARENT, ViewGroup.LayoutParams.WRAP_CONTENT);
    }

    static LinearLayout.LayoutParams small() {
        return new LinearLayout.LayoutParams(
                ViewGroup.LayoutParams.WRAP_CONTENT, ViewGroup.LayoutParams.WRAP_CONTENT);
    }
}
